"""What sees in a model: towers over patches of pictures, and projectors after them."""
