"""The subcommands of softmaxctl, one module each."""
