"""What kernels that choose among a row's tokens share: whole-number weights, and a selection by them."""
