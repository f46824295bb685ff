"""What `dendro doctor` looks at: this machine (`machine`), its Redis (`server`), told as `findings`."""
