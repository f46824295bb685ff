-- uses: base
-- takes: worker claim epoch seen manifest redacting
-- gives: OK now# | FENCED epoch# | REFUSED reason
--
-- The same entries are in other segments, which the manifest names: those that were redacted have no text there.
-- What a redaction still owes is redacting from now on, empty where it owes nothing.
--
-- KEYS  1 session hash

local bad = misfit(KEYS[1], 'hash')
if bad then return bad end
local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'manifest'})
if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch then return {'FENCED', num(s.epoch)} end
if (s.manifest or '') ~= seen then return {'REFUSED', 'the manifest is another one'} end

redis.call('HSET', KEYS[1], 'manifest', manifest, 'redacting', redacting)
return {'OK', now_ms()}
