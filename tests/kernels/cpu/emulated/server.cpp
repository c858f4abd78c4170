// Calls the kernels of another processor's library for the process that holds the other end of a socket.
//
// Arguments point into that process's memory.  Here nothing lies at these addresses, so that the first access to a page
// is a fault, whose handler asks for the page.  After a call what it has changed goes back, and the pages are forgotten.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "messages.h"

namespace {

struct Page { char* at; char before[PAGE]; };

std::vector<Page*> pages;
std::atomic_flag busy = ATOMIC_FLAG_INIT;

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "emulated kernels: %s\n", why);
  std::_Exit(1);
}

void say(Message message) {
  if (!send_all(SOCKET, &message, sizeof message)) std::_Exit(0);
}

bool is_here(const char* at) {
  for (const Page* page : pages)
    if (page->at == at) return true;
  return false;
}

// A page appears with its content: another thread may look at it at once.
void place(char* at, char* filled) {
  Page* page = new Page{at, {}};
  std::memcpy(page->before, filled, PAGE);
  if (mremap(filled, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at) give_up("a page can't be placed");
  pages.push_back(page);
}

void fetch(char* window) {
  say({READ, reinterpret_cast<uint64_t>(window), WINDOW});
  Window answer;
  if (!receive_all(SOCKET, &answer, sizeof answer)) std::_Exit(0);
  for (size_t i = 0; i < PAGES; i++) {
    if (!(answer.there >> i & 1)) continue;
    char* filled = static_cast<char*>(mmap(nullptr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (filled == MAP_FAILED || !receive_all(SOCKET, filled, PAGE)) give_up("no memory");
    if (is_here(window + i * PAGE)) munmap(filled, PAGE);
    else place(window + i * PAGE, filled);
  }
}

void on_fault(int, siginfo_t* fault, void*) {
  const uint64_t address = reinterpret_cast<uint64_t>(fault->si_addr);
  while (busy.test_and_set(std::memory_order_acquire)) continue;
  if (!is_here(reinterpret_cast<char*>(address / PAGE * PAGE))) {  // Else another thread has fetched it.
    fetch(reinterpret_cast<char*>(address / WINDOW * WINDOW));
    if (!is_here(reinterpret_cast<char*>(address / PAGE * PAGE))) {
      std::fprintf(stderr, "emulated kernels: nothing at %p\n", fault->si_addr);
      std::_Exit(1);
    }
  }
  busy.clear(std::memory_order_release);
}

// Sends what differs, since other threads of the caller may have written to the rest.
void give_back(const Page& page) {
  for (size_t i = 0; i < PAGE;) {
    if (page.at[i] == page.before[i]) { i++; continue; }
    size_t end = i;
    while (end < PAGE && page.at[end] != page.before[end]) end++;
    say({WRITE, reinterpret_cast<uint64_t>(page.at + i), end - i});
    if (!send_all(SOCKET, page.at + i, end - i)) std::_Exit(0);
    i = end;
  }
}

void forget_pages() {
  for (Page* page : pages) {
    give_back(*page);
    munmap(page->at, PAGE);
    delete page;
  }
  pages.clear();
}

template <class Type> Type* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) give_up(dlerror());
  return reinterpret_cast<Type*>(found);
}

template <class T> T* pointer(int64_t argument) { return reinterpret_cast<T*>(argument); }

uint64_t run(void* library, const Call& call) {
  const int64_t* a = call.arguments;
  const auto number = [&](int i) { return static_cast<int>(a[i]); };
  const auto bytes = [&](int i) { return pointer<void>(a[i]); };
  switch (call.function) {
    case USE: return symbol<int(void*)>(library, "pk_use")(bytes(0));
    case PACK:
      return symbol<int(int, void*, int, int, int, void*, int, void*, int)>(library, "pk_pack")(
          number(0), bytes(1), number(2), number(3), number(4), bytes(5), number(6), bytes(7), number(8));
    case MATRIX_BYTES: return symbol<size_t(int, int, int)>(library, "pk_matrix_bytes")(number(0), number(1), number(2));
    case PRODUCT_BYTES: return symbol<size_t(void*, int, int)>(library, "pk_product_bytes")(bytes(0), number(1), number(2));
    case PRODUCT:
      symbol<void(void*, void*, int, int, void*, int, void*)>(library, "pk_product")(
          bytes(0), bytes(1), number(2), number(3), bytes(4), number(5), bytes(6));
      return 0;
    case CHECK: return symbol<int(void*)>(library, "pk_check")(bytes(0));
    case FORWARD_BYTES: return symbol<size_t(void*, void*)>(library, "pk_forward_bytes")(bytes(0), bytes(1));
    case FORWARD: symbol<void(void*, void*, void*)>(library, "pk_forward")(bytes(0), bytes(1), bytes(2)); return 0;
    case SAMPLE_BYTES: return symbol<size_t(void*)>(library, "pk_sample_bytes")(bytes(0));
    case SAMPLE: symbol<void(void*, void*)>(library, "pk_sample")(bytes(0), bytes(1)); return 0;
    case UNIFORM:
      symbol<void(int, void*, void*, void*, void*)>(library, "pk_uniform")(number(0), bytes(1), bytes(2), bytes(3), bytes(4));
      return 0;
    case NAME: std::strcpy(pointer<char>(a[0]), symbol<const char*()>(library, "pk_instruction_set")()); return 0;
    default: give_up("an unknown function");
  }
}

}  // namespace

int main(int count, char** arguments) {
  void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : nullptr;
  if (!library) give_up(count == 2 ? dlerror() : "the library's path is wanted");
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  pages.reserve(1 << 20);
  say({DONE, 0, 0});  // All that is needed is loaded.
  Call call;
  while (receive_all(SOCKET, &call, sizeof call)) {
    const uint64_t result = run(library, call);
    forget_pages();
    say({DONE, result, 0});
  }
}
