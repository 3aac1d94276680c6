"""The page that people with a browser see at `/`, to try the fleet and to look at it.

- `endpoints`: the routes, on loopback or where `--page` turns them on; `about`: the page elsewhere.
- `watching`: one watch of the fleet for all who look.
- `static/`: the page, as browsers load it. `app.js` is its beginning; `playground.js` (with `request.js`
  and `outcome.js`), `fleet.js` and `timeline.js` are its views; `api.js` and `events.js` call the gateway.
"""
