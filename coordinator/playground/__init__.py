"""The playground, where visitors have the newest checkpoint fill in the blanks in their sentences.

The web server imports `questions`; `coordinator.service.parts` runs `answerer` in its own process.
"""
