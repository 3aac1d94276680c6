"""Whether a request is accepted, taken at risk or refused, and what it is promised.

Read in this order:

    learnt       what is learnt from requests that were admitted
    predict      the TTFT and TPOT that a request will have
    slo_floor    SLOs that no worker could meet, however idle
    judge        a prediction becomes a decision
    admit        a newcomer has a place in the queue: it is judged, and told
    quote        the same for a request that is not sent
    shed         waiting requests that give up their SLO so that others are in time

The first four know no `RouterState`, only the fleet, what was learnt and what waits. The others also import
`queue` and `session`.
"""
