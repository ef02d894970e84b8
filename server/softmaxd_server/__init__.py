"""The server of softmaxd: `python -m softmaxd_server`, or `app.Server` inside another process."""
