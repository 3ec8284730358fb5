"""One of SGLang's servers by itself, on a CPU: for measurements and checks of speculation."""
