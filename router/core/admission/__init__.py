"""Whether a request is accepted, taken at risk or refused, and what it is promised.

Read in this order:

    judge    what a request will experience, and the decision on it
    admit    a newcomer has a place in the queue: it is judged, and told; so is a request that is not sent
    shed     waiting requests that give up their SLO so that others are in time

What was learnt is in `scheduling/admission/learnt.py`. `judge` changes nothing but what it learns of its own
refusals; the others also import `queue` and `session`.
"""
