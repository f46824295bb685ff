-- Redis runs Lua 5.1 with a few globals of its own, and forbids a script to set any.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "KEYS", "ARGV", "jit" }
max_line_length = 130
-- An argument that a function has to take, and one value of several that a call gives.
unused_args = false
files["stdin"] = {}
