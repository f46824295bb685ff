"""The window: a web page in which a person supervises the fleet, and the requests that it makes.

- `door`: addresses, sign-in, what a request may, methods over HTTP
- `pages`: the page and its files, by their content's hash, with the policy that browsers hold them to
- `stream`: what changes, as server-sent events
- `assets/`, `vendor/`: the page itself, and the modules of others that it uses, unchanged
"""
