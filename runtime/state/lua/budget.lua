-- budget.lua: precedes the scripts of budgets. scheduling/admission/budgets.py computes the same in Python.
-- KEYS[1] a tenant's budget (hash): what is left of `requests` and `tokens`, and `at`, when that was so.
-- KEYS[2] the receipt of a request, if that has a name (hash): how many `calls` it was for, the tokens `paid`, what the
-- `whole` may cost, and what the last `call` has `taken`.
local RECEIPT = KEYS[2]
local function exact_number(number) return string.format('%.17g', number) end
local at = tonumber(redis.call('HGET', KEYS[1], 'at'))

-- Return what is left of a bucket now; a tenant without a record has a full one.
local function filled(field, per_s, burst)
  local level = at and tonumber(redis.call('HGET', KEYS[1], field))
  if not level then return burst end
  return math.min(burst, level + math.max(0, now - at) * per_s / 1000)
end
