-- The invalidation log's verbs as one script: each call is one atomic step on one fleet's keys, all in one hash slot.
--
-- KEYS    1 state  2 stream  3 tombstones  4 floors  5 scopes  6 members  7 requests  8 weights  9 namespaces
--         Nothing here has a time to live, and no verb reads a clock (rule R11).
-- ARGV    1 verb   2 32 random hexadecimal digits, the incarnation if one has to begin   3 least k of a new incarnation
--         4 limits: records kept, records a batch, tombstones a scope, tombstones, scopes, requests, weights, namespaces,
--           members; decimal, a comma between   5… the verb's own
-- Replies {status, incarnation, k, tip, settled, …the verb's own}; all strings. Status is OK, or INC, FORK, GAP of a
--         renewal (rule R8), or REFUSED with the reason in words as the sixth.
--
-- state       history, incarnation, tip, digest (40 hexadecimal digits), settled (0 or 1), k, members, tombstones, floors
--             (how many of each), known (namespaces entered so far), fence
-- stream      revision-0 -> p payload, d digest
-- tombstones  scope‖selector -> revision. A scope is "-" (the fleet) or "n" and 32 bytes of a namespace id
-- floors      scope -> revision below which no stamp is valid
-- scopes      scope -> "tombstones newest", newest the newest revision among its tombstones and its floor
-- members     id -> "number acknowledged drained note"
-- requests    "i"‖request id -> revision, "s"‖place -> request id: a ring of places, so that the oldest goes
-- weights     model -> "revision version"
-- namespaces  "i"‖sha1 -> canonical encoding, "s"‖place -> sha1: a ring of places too

local state, stream, tombstones, floors, scopes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local members, requests, weights, namespaces = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local verb, call = ARGV[1], redis.call
local FLEET = '-'
local NO_DIGEST = string.rep('0', 40)
local REVISION_MAX = 9007199254740991  -- 2^53 - 1: beyond it a Lua number would skip some

-- Never tostring(): it writes large numbers with an exponent.
local function text(number)
  return string.format('%.0f', number)
end

-- A full Redis refuses what may grow, unless the script has written already. Removing nothing counts as that, so no
-- renewal and no invalidation fails because pages have filled the memory. On a replica it ends the script with READONLY.
if verb ~= 'know' then
  call('HDEL', state, '')
end

-- The guard (rule R6). Another primary, a restart, an old dump, FLUSHALL, or keys that were lost one by one: whatever is
-- not wholly the data that this server has kept since the incarnation began is a new incarnation, and starts from nothing.
local history = string.match(call('INFO', 'replication'), 'master_replid:(%w+)')
  .. string.match(call('INFO', 'server'), 'run_id:(%w+)')
local kept = call('HMGET', state, 'history', 'incarnation', 'tip', 'digest', 'settled', 'k', 'members', 'tombstones', 'floors')

local function begin(incarnation, k)
  call('UNLINK', state, stream, tombstones, floors, scopes, members, requests, weights, namespaces)
  call('HSET', state, 'history', history, 'incarnation', incarnation, 'tip', '0', 'digest', NO_DIGEST, 'settled', '0',
    'k', k, 'members', '0', 'tombstones', '0', 'floors', '0', 'known', '0')
  return { history, incarnation, '0', NO_DIGEST, '0', k, '0', '0', '0' }
end

local function raised(k)
  if (tonumber(k or '') or 0) > tonumber(ARGV[3]) then return k end
  return ARGV[3]
end

if kept[1] ~= history
  or tonumber(kept[7]) ~= call('HLEN', members)
  or tonumber(kept[8]) ~= call('HLEN', tombstones)
  or tonumber(kept[9]) ~= call('HLEN', floors) then
  kept = begin(ARGV[2], raised(kept[6]))
end
local incarnation, tip, digest, settled, k = kept[2], tonumber(kept[3]), kept[4], kept[5], kept[6]

local function answer(status, ...)
  return { status, incarnation, k, text(tip), settled, ... }
end

local function limits()
  local found = {}
  for number in string.gmatch(ARGV[4], '%d+') do found[#found + 1] = tonumber(number) end
  return { records = found[1], batch = found[2], per_scope = found[3], tombstones = found[4], scopes = found[5],
    requests = found[6], weights = found[7], namespaces = found[8], members = found[9] }
end

-- 5 member, 6 number, 7 incarnation, 8 applied, 9 digest there, 10 acknowledged, 11 drained, 12 note
-- -> number, records after applied
if verb == 'renew' then
  local number, applied = ARGV[6], tonumber(ARGV[8])
  if ARGV[7] ~= incarnation then return answer('INC', number, {}) end
  if applied > tip or (applied == tip and ARGV[9] ~= digest) then return answer('FORK', number, {}) end
  local most = limits()
  local records, gap = {}, false
  if applied < tip then
    records = call('XRANGE', stream, text(applied + 1) .. '-0', '+', 'COUNT', text(most.batch))
    gap = not records[1] or records[1][1] ~= text(applied + 1) .. '-0'
    -- The first record that follows proves the digest that the member has: its own was made from it.
    if not gap and redis.sha1hex(ARGV[9] .. records[1][2][2]) ~= records[1][2][4] then
      return answer('FORK', number, {})
    end
  end
  if call('HEXISTS', members, ARGV[5]) == 0 then
    local count = tonumber(kept[7])
    if count >= most.members then return answer('REFUSED', 'members') end
    call('HSET', state, 'members', text(count + 1))
  end
  call('HSET', members, ARGV[5], number .. ' ' .. ARGV[10] .. ' ' .. ARGV[11] .. ' ' .. ARGV[12])
  if gap then return answer('GAP', number, {}) end
  return answer('OK', number, records)
end

local function remove(key, fields)
  local unpack = unpack or table.unpack
  for first = 1, #fields, 512 do
    call('HDEL', key, unpack(fields, first, math.min(first + 511, #fields)))
  end
end

local function scope_of(field)
  if string.sub(field, 1, 1) == FLEET then return FLEET end
  return string.sub(field, 1, 33)
end

-- What is held, read whole: scope -> {floor, newest, list of {field, revision}, oldest first}, and all tombstones so.
local function held()
  local by_scope, all = {}, {}
  local function of(scope)
    if not by_scope[scope] then by_scope[scope] = { floor = 0, newest = 0, list = {} } end
    return by_scope[scope]
  end
  local flat = call('HGETALL', floors)
  for at = 1, #flat, 2 do
    local revision = tonumber(flat[at + 1])
    of(flat[at]).floor, of(flat[at]).newest = revision, revision
  end
  flat = call('HGETALL', tombstones)
  for at = 1, #flat, 2 do
    all[#all + 1] = { field = flat[at], revision = tonumber(flat[at + 1]), scope = scope_of(flat[at]) }
  end
  table.sort(all, function(a, b) return a.revision < b.revision end)
  for _, tombstone in ipairs(all) do
    local entry = of(tombstone.scope)
    entry.list[#entry.list + 1] = tombstone
    if tombstone.revision > entry.newest then entry.newest = tombstone.revision end
  end
  return by_scope, all
end

-- Rule R4. The older half of too many tombstones of one scope, or of all scopes together, becomes the floor of each one's
-- scope; the older half of too many namespaces becomes the floor of the fleet. A floor is the newest revision that it
-- stands for, never less. What a floor of the fleet covers goes with it.
local function compact(scope, most)
  local by_scope, all = held()
  local raise, gone, left = {}, {}, #all
  local function drop(tombstone)
    if not gone[tombstone] then
      gone[tombstone], left = true, left - 1
      if tombstone.revision > (raise[tombstone.scope] or 0) then raise[tombstone.scope] = tombstone.revision end
    end
  end
  local list = by_scope[scope].list
  if #list > most.per_scope then
    for at = 1, math.floor(#list / 2) do drop(list[at]) end
  end
  local function cover()
    for _, tombstone in ipairs(all) do
      if tombstone.revision <= (raise[FLEET] or 0) then drop(tombstone) end
    end
  end
  cover()
  if left > most.tombstones then
    local excess = math.floor(left / 2)
    for _, tombstone in ipairs(all) do
      if excess == 0 then break end
      if not gone[tombstone] then
        drop(tombstone)
        excess = excess - 1
      end
    end
    cover()
  end
  local order = {}
  for name, entry in pairs(by_scope) do
    if name ~= FLEET and entry.newest > (raise[FLEET] or 0) then order[#order + 1] = { name = name, newest = entry.newest } end
  end
  if #order > most.scopes then
    table.sort(order, function(a, b) return a.newest < b.newest end)
    local newest = order[math.floor(#order / 2)].newest
    if newest > (raise[FLEET] or 0) then raise[FLEET] = newest end
    cover()
  end
  local fields = {}
  for tombstone in pairs(gone) do fields[#fields + 1] = tombstone.field end
  remove(tombstones, fields)
  local fleet = math.max(raise[FLEET] or 0, by_scope[FLEET] and by_scope[FLEET].floor or 0)
  local covered = {}
  call('UNLINK', scopes)
  for name, entry in pairs(by_scope) do
    local floor, count = math.max(entry.floor, raise[name] or 0), 0
    for _, tombstone in ipairs(entry.list) do
      if not gone[tombstone] then count = count + 1 end
    end
    if name ~= FLEET and floor <= fleet then
      if entry.floor > 0 then covered[#covered + 1] = name end
      floor = 0
    elseif floor > entry.floor then
      call('HSET', floors, name, text(floor))
    end
    if count > 0 or floor > 0 then call('HSET', scopes, name, text(count) .. ' ' .. text(entry.newest)) end
  end
  if not by_scope[FLEET] and fleet > 0 then
    call('HSET', floors, FLEET, text(fleet))
    call('HSET', scopes, FLEET, '0 ' .. text(fleet))
  end
  remove(floors, covered)
end

local function tombstone(scope, selector, revision, most)
  if selector == '' then  -- everything
    call('UNLINK', tombstones, floors, scopes)
    call('HSET', floors, FLEET, revision)
    call('HSET', scopes, FLEET, '0 ' .. revision)
  else
    local count = string.match(call('HGET', scopes, scope) or '0 0', '^%d+')
    count = tonumber(count) + call('HSET', tombstones, scope .. selector, revision)
    call('HSET', scopes, scope, text(count) .. ' ' .. revision)
    local spaces = call('HLEN', scopes) - call('HEXISTS', scopes, FLEET)
    if count > most.per_scope or call('HLEN', tombstones) > most.tombstones or spaces > most.scopes then
      compact(scope, most)
    end
  end
  call('HSET', state, 'tombstones', text(call('HLEN', tombstones)), 'floors', text(call('HLEN', floors)))
end

local function announce(model, version, revision, most)
  call('HSET', weights, model, revision .. ' ' .. version)
  if call('HLEN', weights) > most.weights then
    local flat = call('HGETALL', weights)
    local oldest, least = nil, nil
    for at = 1, #flat, 2 do
      local at_revision = tonumber(string.match(flat[at + 1], '^%d+'))
      if not least or at_revision < least then oldest, least = flat[at], at_revision end
    end
    call('HDEL', weights, oldest)
  end
end

-- Enters an id into a bounded ring of places, in place of the one that was entered so many before it.
local function enter(key, id, value, place)
  local before = call('HGET', key, 's' .. place)
  if before then call('HDEL', key, 'i' .. before) end
  call('HSET', key, 's' .. place, id, 'i' .. id, value)
end

-- 5 request id, 6 payload, then "S", scope, selector or "W", model, version -> revision, ids of the members
if verb == 'append' then
  local done = call('HGET', requests, 'i' .. ARGV[5])
  if done then return answer('OK', done, call('HKEYS', members)) end
  if tip >= REVISION_MAX then return answer('REFUSED', 'revisions') end
  local most = limits()
  tip = tip + 1
  digest = redis.sha1hex(digest .. ARGV[6])
  local revision = text(tip)
  call('XADD', stream, revision .. '-0', 'p', ARGV[6], 'd', digest)
  call('XTRIM', stream, 'MAXLEN', text(most.records))
  if ARGV[7] == 'W' then
    announce(ARGV[8], ARGV[9], revision, most)
  else
    tombstone(ARGV[8], ARGV[9], revision, most)
  end
  enter(requests, ARGV[5], revision, text(tip % most.requests))
  call('HSET', state, 'tip', revision, 'digest', digest)
  return answer('OK', revision, call('HKEYS', members))
end

-- -> digest, floors, tombstones, weights, each field and value by turns (rule R9)
if verb == 'boot' then
  return answer('OK', digest, call('HGETALL', floors), call('HGETALL', tombstones), call('HGETALL', weights))
end

-- -> members, id and value by turns. It writes, since WAIT asks the replicas anew only for what they have not seen: an old
-- primary cut off from its replicas would be answered by what they acknowledged long ago.
if verb == 'fence' then
  call('HSET', state, 'fence', ARGV[2])
  return answer('OK', call('HGETALL', members))
end

-- 5 incarnation: a new one begins if the present one is still that (rule R8)
if verb == 'fork' then
  if ARGV[5] == incarnation then
    kept = begin(ARGV[2], raised(k))
    incarnation, tip, settled, k = kept[2], 0, '0', kept[6]
  end
  return answer('OK')
end

-- 5 incarnation -> 1 if it is the present one, which is settled from now on (rule R12), else 0
if verb == 'settle' then
  if ARGV[5] ~= incarnation then return answer('OK', '0') end
  settled = '1'
  call('HSET', state, 'settled', settled)
  return answer('OK', '1')
end

-- 5 member, 6 number -> 1 if the member is not in the table now, 0 if it has renewed since
if verb == 'leave' then
  local member = call('HGET', members, ARGV[5])
  if member then
    if string.match(member, '^%d+') ~= ARGV[6] then return answer('OK', '0') end
    call('HDEL', members, ARGV[5])
    call('HSET', state, 'members', text(call('HLEN', members)))
  end
  return answer('OK', '1')
end

-- 5 k (rule R10)
if verb == 'set_replicas' then
  k = ARGV[5]
  call('HSET', state, 'k', k)
  return answer('OK')
end

-- 5 after, 6 count -> records
if verb == 'read' then
  return answer('OK', call('XRANGE', stream, text(tonumber(ARGV[5]) + 1) .. '-0', '+', 'COUNT', ARGV[6]))
end

-- 5… canonical encodings -> how many were new
if verb == 'know' then
  local most, known, new = limits(), tonumber(call('HGET', state, 'known')), 0
  for at = 5, #ARGV do
    local id = redis.sha1hex(ARGV[at])
    if call('HEXISTS', namespaces, 'i' .. id) == 0 then
      enter(namespaces, id, ARGV[at], text(known % most.namespaces))
      known, new = known + 1, new + 1
    end
  end
  call('HSET', state, 'known', text(known))
  return answer('OK', text(new))
end

-- 5 place to begin at, 6 places -> place to go on at or "", canonical encodings
if verb == 'namespaces' then
  local first, places = tonumber(ARGV[5]), math.min(tonumber(call('HGET', state, 'known')), limits().namespaces)
  local last, found = math.min(first + tonumber(ARGV[6]), places), {}
  for place = first, last - 1 do
    local id = call('HGET', namespaces, 's' .. text(place))
    local canonical = id and call('HGET', namespaces, 'i' .. id)
    if canonical then found[#found + 1] = canonical end
  end
  return answer('OK', last < places and text(last) or '', found)
end

-- -> records, tombstones, floors, scopes, members, requests, weights, namespaces: how many there are
if verb == 'statistics' then
  local sizes = { text(call('XLEN', stream)) }
  for _, key in ipairs({ tombstones, floors, scopes, members }) do sizes[#sizes + 1] = text(call('HLEN', key)) end
  sizes[#sizes + 1] = text(call('HLEN', requests) / 2)
  sizes[#sizes + 1] = text(call('HLEN', weights))
  sizes[#sizes + 1] = text(call('HLEN', namespaces) / 2)
  return answer('OK', sizes)
end

return answer('REFUSED', 'verb')
