-- Shared by the scripts that keep `states`, a field of a root's hash: what the agents of its tree are at, so that
-- lists need no other hash for a tree. `<agent>:<parent>:<status> …|<status>=<number> …`: the first agents that were
-- born, and of all of them how many have each status. A tree that an earlier version made lacks it until it is
-- recounted: the keys of its agents are not given here.

local SHOWN_MOST = 64

local function count_status(counts, status, more)
  local found = false
  local counted = string.gsub(counts, '([^= ]+)=(%d+)', function(name, n)
    if name ~= status then return nil end
    found = true
    return name .. '=' .. text(math.max(0, tonumber(n) + more))
  end)
  if found then return counted end
  return (counts == '' and '' or counts .. ' ') .. status .. '=' .. text(more)
end

-- With one more agent; `states` is empty before the first.
local function with_agent(states, agent_id, parent, status)
  local shape, counts = string.match(states, '^(.*)|(.*)$')
  shape, counts = shape or '', counts or ''
  local _, shown = string.gsub(shape, '%S+', '')
  if shown < SHOWN_MOST then
    shape = (shape == '' and '' or shape .. ' ') .. agent_id .. ':' .. parent .. ':' .. status
  end
  return shape .. '|' .. count_status(counts, status, 1)
end

local function with_status(states, agent_id, old, new)
  local shape, counts = string.match(states, '^(.*)|(.*)$')
  local placed = string.gsub(' ' .. shape, '( ' .. agent_id .. ':%d*:)%S+', function(head) return head .. new end, 1)
  return string.sub(placed, 2) .. '|' .. count_status(count_status(counts, old, -1), new, 1)
end
