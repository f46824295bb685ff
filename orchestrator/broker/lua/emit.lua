-- uses: base
-- takes: worker claim epoch eq_keep~ eq_ttl_ms~ events(payload seq hash8)
-- gives: OK n# sq# now# | FENCED epoch#
--
-- Appends deltas to the event queue of a session that the caller still holds. Those of an entry that is
-- not the log's last any more are dropped: their sender gave them up, and the text that they led up to
-- has been shown since.
--
-- KEYS  1 session hash   2 eq stream

local function misfit_read()
  return misfit(KEYS[1], 'hash') or misfit(KEYS[2], 'stream')
end

local function judged()
  local s = fields_of(KEYS[1], {'owner', 'claim', 'epoch', 'eq', 'sq', 'seq'})
  if s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch then return {'FENCED', num(s.epoch)} end
  local n = num(s.eq)
  if ahead(KEYS[2], n) then return ahead_reply(KEYS[2], n) end
  for _, e in ipairs(events) do
    if tonumber(e.seq) ~= num(s.seq) then return {'OK', n, num(s.sq), now_ms()} end
  end
  return nil, s, n
end

local refused, s, n = looked(judged, misfit_read)
if refused then return refused end

local now = now_ms()
redis.call('HSET', KEYS[1], 'eq', text(n + #events))
for i, e in ipairs(events) do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', eq_keep, text(n + i) .. '-0',
    'p', e.payload, 's', e.seq, 'h', e.hash8, 't', text(now))
end
redis.call('PEXPIRE', KEYS[2], eq_ttl_ms)
return {'OK', n + #events, num(s.sq), now}
