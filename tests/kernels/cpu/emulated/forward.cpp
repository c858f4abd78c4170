// The kernels' C interface, as tests load it in this processor's place for another one's instruction sets.
//
// Calls go to this processor's own library until one of the other's instruction sets is chosen, and then to a server
// that an emulator runs (server.cpp).  PENSTOCK_EMULATED_CPU names the processor that it emulates.  It is built with the paths REAL, EMULATOR, PREFIX, SERVER and OTHER.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "messages.h"

namespace {

constexpr const char* OTHERS[] = {"neon", "neoni8mm", "portable"};

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "emulated kernels: %s\n", why);
  std::abort();
}

template <class Type> Type* real(const char* name) {
  static void* library = dlopen(REAL, RTLD_NOW);
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found) give_up(dlerror());
  return reinterpret_cast<Type*>(found);
}

struct Area { uint64_t first, last; };

// But for stacks, where nothing lies that kernels are given, and the system's own.
std::vector<Area> areas_of(const std::string& process) {
  std::vector<Area> areas;
  std::FILE* file = std::fopen(("/proc/" + process + "/maps").c_str(), "r");
  char line[4096];
  for (Area area; file && std::fgets(line, sizeof line, file);)
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64, &area.first, &area.last) == 2 && area.first < UINT64_C(1) << 47 &&
        !std::strstr(line, "[stack]"))
      areas.push_back(area);
  if (file) std::fclose(file);
  return areas;
}

// Whether some memory of the other lies where this process has some, or soon may: an access to it would be no fault.
bool too_near(pid_t other) {
  constexpr uint64_t ROOM = UINT64_C(16) << 30;
  const std::vector<Area> own = areas_of("self");
  for (const Area& area : areas_of(std::to_string(other)))
    for (const Area& mine : own)
      if (area.first < mine.last + ROOM && mine.first < area.last + ROOM) return true;
  return false;
}

class Server {
 public:
  int64_t call(const Call& call) {
    const std::lock_guard<std::mutex> alone(lock_);
    if (socket_ < 0) start();
    if (!send_all(socket_, &call, sizeof call)) give_up("the server has gone");
    return serve();
  }

 private:
  // Where a process lies is chance: another one is started if it is in the way.
  void start() {
    memory_ = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    for (int attempt = 0; attempt < 50; attempt++) {
      const pid_t child = launch();
      serve();
      if (!too_near(child)) return;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      close(socket_);
    }
    give_up("the emulator always lies where this process does");
  }

  pid_t launch() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) give_up("no sockets");
    const pid_t child = fork();
    if (child < 0) give_up("no process");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (dup2(ends[1], SOCKET) < 0 || (ends[1] == SOCKET && fcntl(SOCKET, F_SETFD, 0))) _exit(1);
      const char* processor = std::getenv("PENSTOCK_EMULATED_CPU");
      execl(EMULATOR, EMULATOR, "-cpu", processor ? processor : "max", "-L", PREFIX, SERVER, OTHER, nullptr);
      _exit(1);
    }
    close(ends[1]);
    socket_ = ends[0];
    return child;
  }

  // Until the call is over; returns its result.
  int64_t serve() {
    for (;;) {
      Message message;
      if (!receive_all(socket_, &message, sizeof message)) give_up("the server has gone");
      if (message.kind == DONE) return static_cast<int64_t>(message.address);
      if (message.kind == READ) read_window(message.address);
      else if (!receive_all(socket_, reinterpret_cast<void*>(message.address), message.size)) give_up("the server has gone");
    }
  }

  void read_window(uint64_t address) {
    static char window[WINDOW];
    Window answer{0};
    size_t used = 0;
    for (size_t i = 0; i < PAGES; i++)
      if (pread(memory_, window + used, PAGE, static_cast<off_t>(address + i * PAGE)) == static_cast<ssize_t>(PAGE)) {
        answer.there |= UINT64_C(1) << i;
        used += PAGE;
      }
    if (!send_all(socket_, &answer, sizeof answer) || !send_all(socket_, window, used)) give_up("the server has gone");
  }

  std::mutex lock_;
  int socket_ = -1, memory_ = -1;
};

Server server;
const char* chosen = nullptr;  // Of OTHERS, or null.

int64_t word(const void* pointer) { return reinterpret_cast<int64_t>(pointer); }
int64_t word(int64_t number) { return number; }

template <class... Arguments> int64_t remote(Function function, Arguments... arguments) { return server.call({function, {word(arguments)...}}); }

}  // namespace

#define PK_PUBLIC extern "C" __attribute__((visibility("default")))

PK_PUBLIC const char* pk_sources() { return real<const char*()>("pk_sources")(); }

PK_PUBLIC const char* pk_instruction_set() { return chosen ? chosen : real<const char*()>("pk_instruction_set")(); }

PK_PUBLIC int pk_use(const char* name) {
  for (const char* other : OTHERS)
    if (!std::strcmp(name, other)) {
      if (remote(USE, name) != 0) return -1;
      chosen = other;
      return 0;
    }
  if (real<int(const char*)>("pk_use")(name) != 0) return -1;
  chosen = nullptr;
  return 0;
}

// name: [16]; the instruction set that the emulated processor's library uses.
PK_PUBLIC void emulated_instruction_set(char* name) { remote(NAME, name); }

namespace {

// A remote call, to be followed by the arguments in parentheses.
struct OfWords {
  Function function;
  template <class... Arguments> int64_t operator()(Arguments... arguments) const { return remote(function, arguments...); }
};

}  // namespace

// A function of the interface: its result, its name, its number above, and what its arguments are.
#define PK_FORWARD(RESULT, NAME, NUMBER, TYPES, NAMES)     \
  PK_PUBLIC RESULT NAME TYPES {                            \
    if (!chosen) return real<RESULT TYPES>(#NAME) NAMES;   \
    return static_cast<RESULT>(OfWords{NUMBER} NAMES);     \
  }

PK_FORWARD(size_t, pk_matrix_bytes, MATRIX_BYTES, (int kind, int outputs, int inputs), (kind, outputs, inputs))
PK_FORWARD(int, pk_pack, PACK,
           (int source, const void* data, int rows, int inputs, int kind, void* tiles, int outputs, const void* order, int threads),
           (source, data, rows, inputs, kind, tiles, outputs, order, threads))
PK_FORWARD(size_t, pk_product_bytes, PRODUCT_BYTES, (const void* matrix, int rows, int parts), (matrix, rows, parts))
PK_FORWARD(void, pk_product, PRODUCT, (const void* matrix, const void* x, int rows, int parts, void* out, int threads, void* work),
           (matrix, x, rows, parts, out, threads, work))
PK_FORWARD(int, pk_check, CHECK, (const void* program), (program))
PK_FORWARD(size_t, pk_forward_bytes, FORWARD_BYTES, (const void* program, const void* batch), (program, batch))
PK_FORWARD(void, pk_forward, FORWARD, (const void* program, const void* batch, void* work), (program, batch, work))
PK_FORWARD(size_t, pk_sample_bytes, SAMPLE_BYTES, (const void* batch), (batch))
PK_FORWARD(void, pk_sample, SAMPLE, (const void* batch, void* work), (batch, work))
PK_FORWARD(void, pk_uniform, UNIFORM, (int count, const void* seeds, const void* sequences, const void* tokens, void* draws),
           (count, seeds, sequences, tokens, draws))
