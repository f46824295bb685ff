-- uses: base
-- takes: key commands(words)
-- gives: denied(number#)
--
-- What the user of this connection may not do. A command is words, `@` in the place of a key; none is run, and
-- no key is touched. Servers before Redis 7 cannot be asked: there it is nothing.
--
-- KEYS  none

local denied = {}
for number, command in ipairs(commands) do
  local words = {}
  for word in string.gmatch(command, '%S+') do words[#words + 1] = word == '@' and key or word end
  if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(words)) then denied[#denied + 1] = number end
end
return {denied}
