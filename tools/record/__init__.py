"""Record programs in a terminal, and draw the recording as an SVG that plays by itself.

- `session`: runs commands in a terminal of their own, and notes what they write and when
- `screen`: what such output leaves on a screen
- `frames`: the screens that a recording shows, and for how long
- `drawing`: the SVG
"""
