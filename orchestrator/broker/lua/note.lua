-- uses: base fleet
-- takes: session name value was most#
-- gives: OK now# | WAS stands! | FULL notes# | UNKNOWN
--
-- Keeps a note about a session in its hash, if the note is still `was` (empty: there is none): how far a person has
-- read it, what a client told of its repository. No log has notes, and no work depends on them. WAS tells the note
-- that is there instead. Twice is as good as once.
--
-- KEYS  1 session hash   2 changed stream

local bad = misfit(KEYS[1], 'hash') or tell_changes(KEYS[2])
if bad then return bad end
if redis.call('HEXISTS', KEYS[1], 'tree') == 0 then return {'UNKNOWN'} end
local field = 'note:' .. name
local stands = redis.call('HGET', KEYS[1], field) or ''
if stands == value then return {'OK', now_ms()} end
if stands ~= was then return {'WAS', stands} end
if stands == '' then
  local notes = 0
  for _, known in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(known, 1, 5) == 'note:' then notes = notes + 1 end
  end
  if notes >= most then return {'FULL', notes} end
end
redis.call('HSET', KEYS[1], field, value)
notify_changed(session)
return {'OK', now_ms()}
