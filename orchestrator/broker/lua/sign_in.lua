-- uses: base
-- takes: code token_id record gone(id)
-- gives: OK now# | USED | TAKEN
--
-- Keeps the token of a browser that signs in. With a code, which is what the gateway has read of it: the code is used
-- up by that, and USED if it is gone or another by now. TAKEN if there is another token of this id. Tokens that are
-- over leave at the same time. Sent again, it answers as the first time.
--
-- KEYS  1 tokens hash (id -> record)   2 code string, the tokens again where none was given

local bad = misfit(KEYS[1], 'hash') or (code ~= '' and misfit(KEYS[2], 'string'))
if bad then return bad end
local stands = redis.call('HGET', KEYS[1], token_id)
if stands == record then return {'OK', now_ms()} end
if code ~= '' and redis.call('GET', KEYS[2]) ~= code then return {'USED'} end
if stands then return {'TAKEN'} end
redis.call('HSET', KEYS[1], token_id, record)
if code ~= '' then redis.call('DEL', KEYS[2]) end
for _, id in ipairs(gone) do redis.call('HDEL', KEYS[1], id) end
return {'OK', now_ms()}
