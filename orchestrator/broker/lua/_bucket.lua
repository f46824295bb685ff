-- What may be spent of a limit per minute: a level that refills as time passes, up to one minute's worth.
-- Levels count in sixty-thousandths, so that a millisecond refills exactly the limit: whole numbers
-- only, and no rounding that adds up to a request too many. A level below 0 is a debt.

local MINUTE = 60000

local function level(key, name, limit, now)
  local stored = redis.call('HGET', key, name)
  if not stored then return limit * MINUTE end
  -- A server that took over may be behind the clock that wrote this.
  local elapsed = math.max(0, now - num(redis.call('HGET', key, name .. '_at')))
  return math.min(limit * MINUTE, num(stored) + elapsed * limit)
end

local function keep_level(key, name, amount, now)
  redis.call('HSET', key, name, text(amount), name .. '_at', text(now))
end
