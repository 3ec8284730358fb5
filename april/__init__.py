"""Active partial rollouts for slime and SGLang."""
