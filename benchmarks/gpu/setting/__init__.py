"""Parts that the sections of a run share. `sizes`: the model and all amounts; `bench`: the state of a run;
`model_dir`: the files of a model without weights; `paged`: random KV; `serving`: requests in this process;
`floors`: the least times by arithmetic; `timing`: median times; `needs`: the packages of a fleet.
"""
