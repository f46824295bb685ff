-- uses: base bucket
-- settle(estimated, used, tokens_per_minute) -> OK now | CORRUPT key why
--
-- A request was admitted with an estimate, and used something else: the level is put right. It may fall
-- below 0; what it rises above a minute's worth is cut when it is read.
--
-- KEYS  1 provider:<name> hash

local estimated, used, limit = take_number(), take_number(), take_number()
all_taken()
local bad = misfit(KEYS[1], 'hash')
if bad then return bad end
local now = now_ms()
local settled = level(KEYS[1], 'tokens', limit, now) + (estimated - used) * MINUTE
keep_level(KEYS[1], 'tokens', settled, now)
return {'OK', now}
