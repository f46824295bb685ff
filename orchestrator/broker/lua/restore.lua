-- uses: base fleet rest texts
-- takes: session tree seq# state texts#
-- gives: OK now# | UNKNOWN | REFUSED reason
--
-- Brings an archived session back: its snapshot as of its last entry, which the caller read from
-- the archive. The log before it stays in the segments. Twice is as good as once. UNSTORED names those of the
-- log's large texts, which the caller put back before, that Redis does not have.
--
-- KEYS  1 session hash   2 snapshot string   3 to_archive zset   4… each text
--       last changed stream

local bad = misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'string') or misfit(KEYS[3], 'zset')
  or tell_changes(KEYS[#KEYS])
if bad then return bad end
local s = fields_of(KEYS[1], {'seq', 'archived'})
if not s.seq then return {'UNKNOWN'} end
if s.archived ~= '1' then return {'OK', now_ms()} end
if num(s.seq) ~= seq then return {'REFUSED', 'the snapshot is not of the last entry'} end
local lost = unstored(4, texts)
if lost then return lost end

redis.call('HSET', KEYS[1], 'archived', '', 'snapshot_seq', text(seq))
redis.call('SET', KEYS[2], state)
local now = now_ms()
may_rest(KEYS[3], tree, now)
notify_changed(session)
return {'OK', now}
