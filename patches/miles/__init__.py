"""What miles 0.0.2 needs beside the pinned SGLang and torch, and on a CPU."""
