-- uses: base
-- rights(key, command, …) -> {the numbers of the commands that may not be run, …}
--
-- What the user of this connection may not do. A command is words, `@` in the place of a key; none is run, and
-- no key is touched. Servers before Redis 7 cannot be asked: there it is nothing.
--
-- KEYS  none

local key, denied = take(), {}
for number = 1, #ARGV - 1 do
  local words = {}
  for word in string.gmatch(take(), '%S+') do words[#words + 1] = word == '@' and key or word end
  if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(words)) then denied[#denied + 1] = number end
end
all_taken()
return denied
