// The kernels for one instruction set; setup.py gives this file its compiler flags.
// Nothing here may use a library's inline functions: the linker could hand their copies, made of
// these instructions, to code that runs on a lesser machine.
#include "vec_neon.h"

#include "distribution.h"
#include "forward.h"

namespace pk {

const Kernels* neoni8mm_kernels() {
  static const Kernels table = {"neoni8mm", product_of, forward, survey, weigh};
  return &table;
}

}  // namespace pk
