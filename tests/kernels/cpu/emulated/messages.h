// What the forwarding library and the server behind it say to each other, over a pair of sockets.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>

constexpr int SOCKET = 3;  // The server's end.
constexpr size_t PAGE = 4096, PAGES = 16, WINDOW = PAGES * PAGE;

// To the server: the number of a function in FUNCTIONS, and its arguments.
struct Call { int64_t function, arguments[10]; };
enum Function : int64_t { USE, PACK, MATRIX_BYTES, PRODUCT_BYTES, PRODUCT, CHECK, FORWARD_BYTES, FORWARD, SAMPLE_BYTES, SAMPLE, UNIFORM, NAME };

// From the server.  READ: the window at `address` is needed; a Window answers, then its pages.  WRITE: `size` bytes
// follow, which belong there.  DONE: the call is over; `address` is its result.
enum Kind : int64_t { READ, WRITE, DONE };
struct Message { int64_t kind; uint64_t address, size; };
// there: a bit for each page of the window that there is.
struct Window { uint64_t there; };

inline bool send_all(int socket, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size;) {
    const ssize_t sent = write(socket, at, size);
    if (sent <= 0) return false;
    at += sent;
    size -= sent;
  }
  return true;
}

inline bool receive_all(int socket, void* data, size_t size) {
  for (char* at = static_cast<char*>(data); size;) {
    const ssize_t received = read(socket, at, size);
    if (received <= 0) return false;
    at += received;
    size -= received;
  }
  return true;
}
