"""The playground, in which visitors fill blanks in sentences with the newest checkpoint.

The web server imports `questions`; `coordinator.service.parts` starts `answerer` as a process.
"""
