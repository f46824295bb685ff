"""Jobs of a pool, done: commands under the sandbox, looks at repositories and files.

workbench  which part does a job, within which bounds
policy     what a job may ask for, as the worker is set up
commands   a command, and the changes of a repository
files      files and folders
search     files by the letters of their paths
"""
