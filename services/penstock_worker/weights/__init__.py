"""Reading a checkpoint's tensors, by memory map, into the dtype that is computed with."""
