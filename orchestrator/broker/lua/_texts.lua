-- gives: UNSTORED lost(hash)
-- Shared by create, commit and restore: the large texts that a step names, stored before it by `put_blob`.
-- Redis may have lost them since (it went back, or they waited for longer than they are kept for a birth), and
-- the step may not stand without them.

-- The answer that names the lost ones of `count` texts from key `first` on; nothing if all are there.
local function unstored(first, count)
  local lost = {}
  for i = first, first + count - 1 do
    if redis.call('EXISTS', KEYS[i]) == 0 then lost[#lost + 1] = string.match(KEYS[i], '[^:]*$') end
  end
  if #lost > 0 then return {'UNSTORED', lost} end
end
