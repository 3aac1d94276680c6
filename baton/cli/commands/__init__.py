"""One module per command, named after it; `checkout_command` runs commands that a checkout contains."""
