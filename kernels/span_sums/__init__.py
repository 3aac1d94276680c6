"""What a row's sums over spans of its context are put together with, whoever made them."""
