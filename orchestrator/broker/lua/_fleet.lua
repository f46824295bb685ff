-- Shared by the scripts that change what lists show of a session: who follows the fleet looks at it again.
-- A follower says so in the shard's stream `watched`, again and again. Where none has done so lately, the
-- scripts of which a turn consists write nothing for it; those that come once in a while always do.

local WATCHED_MS = 60000
local changed_in

-- From here on changes are told in this stream; or a refusal.
local function tell_changes(changed)
  local bad = misfit(changed, 'stream')
  if not bad then changed_in = changed end
  return bad
end

local function notify_changed(session)
  if changed_in then redis.call('XADD', changed_in, 'MAXLEN', '~', 1024, '*', 's', session) end
end

-- The end for a read of `watched`: an entry behind it is one of a follower that still follows.
local function followed_since(now)
  return math.max(0, now - WATCHED_MS)
end
