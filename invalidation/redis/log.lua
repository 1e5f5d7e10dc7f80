-- The invalidation log's verbs as one script: each call is one atomic step on one fleet's keys, all in one hash slot.
--
-- KEYS    1 state  2 stream  3 tombstones  4 floors  5 scopes  6 members  7 requests  8 weights  9 namespaces  10 known
--         Nothing here has a time to live, and no verb reads a clock (rule R11).
-- ARGV    1 verb   2 32 random hexadecimal digits, the incarnation if one has to begin   3 least k of a new incarnation
--         4 limits: records kept, records a batch, tombstones a scope, tombstones, scopes, requests, weights, namespaces,
--           members; decimal, a comma between   5… the verb's own
-- Replies {status, incarnation, k, tip, settled, …the verb's own}; all strings. Status is OK, or INC, FORK, GAP of a
--         renewal (rule R8), or REFUSED with the reason in words as the sixth.
--
-- state       history, incarnation, tip, digest (40 hexadecimal digits), settled (0 or 1), k, members, tombstones, floors,
--             scopes, weights, namespaces (how many of each), known (how often a namespace was entered), fence (see mark)
-- stream      revision-0 -> p payload, d digest
-- tombstones  scope‖selector -> revision. A scope is "-" (the fleet) or "n" and 32 bytes of a namespace id
-- floors      scope -> revision below which no stamp is valid
-- scopes      scope -> how many tombstones it has
-- members     id -> "number acknowledged drained gone note"; gone 1 for one that is remembered only until it has drained
-- requests    "i"‖request id -> revision, "s"‖place -> request id: a ring of places, so that the oldest goes
-- weights     model -> "revision version"
-- namespaces  sha1 -> canonical encoding
-- known       sha1 -> which entry its last one was, so that the oldest goes

local state, stream, tombstones, floors, scopes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local members, requests, weights, namespaces, known = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local verb, call = ARGV[1], redis.call
local FLEET = '-'
local unpacked = unpack or table.unpack
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
-- The stream is not counted (who lacks a record of it has a gap), nor are requests (one that is made again selects more).
local function told(section, name)
  local facts = call('INFO', section)
  local _, last = string.find(facts, name, 1, true)  -- plainly: a pattern would be tried at each of its letters
  return string.match(facts, '^%w+', last + 1)
end
local history = told('replication', 'master_replid:') .. told('server', 'run_id:')
local kept = call('HMGET', state, 'history', 'incarnation', 'tip', 'digest', 'settled', 'k', 'members')

local function is_whole()
  if kept[1] ~= history or tonumber(kept[7]) ~= call('HLEN', members) then return false end
  -- A renewal, by far the most frequent call, neither reads nor writes the others: their loss is noticed before anybody does.
  if verb == 'renew' then return true end
  local counts = call('HMGET', state, 'tombstones', 'floors', 'scopes', 'weights', 'namespaces', 'namespaces')
  for at, key in ipairs({ tombstones, floors, scopes, weights, namespaces, known }) do
    if tonumber(counts[at]) ~= call('HLEN', key) then return false end
  end
  return true
end

local function begin(incarnation, k)
  call('UNLINK', state, stream, tombstones, floors, scopes, members, requests, weights, namespaces, known)
  call('HSET', state, 'history', history, 'incarnation', incarnation, 'tip', '0', 'digest', NO_DIGEST, 'settled', '0',
    'k', k, 'members', '0', 'tombstones', '0', 'floors', '0', 'scopes', '0', 'weights', '0', 'namespaces', '0',
    'known', '0')
  return { history, incarnation, '0', NO_DIGEST, '0', k, '0' }
end

local function raised(k)
  if (tonumber(k or '') or 0) > tonumber(ARGV[3]) then return k end
  return ARGV[3]
end

if not is_whole() then
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

-- Makes room for a member that is one too many in place of one that is gone; false if there is none.
local function displace()
  local flat = call('HGETALL', members)
  for at = 1, #flat, 2 do
    if string.match(flat[at + 1], '^%d+ %d+ %d+ 1 ') then
      call('HDEL', members, flat[at])
      return true
    end
  end
  return false
end

-- What is answered may be relied on only if the replicas confirm it, and WAIT asks them anew only for what they have not
-- seen: an old primary cut off from its replicas would be answered by what they acknowledged long ago. So it writes.
local function mark()
  call('HSET', state, 'fence', ARGV[2])
end

-- 5 member, 6 number, 7 incarnation, 8 applied, 9 digest there, 10 acknowledged, 11 drained, 12 note
-- -> number, records after applied
if verb == 'renew' then
  local number, applied, records = ARGV[6], tonumber(ARGV[8]), {}
  local function refuse(status)
    mark()
    return answer(status, number, {})
  end
  if ARGV[7] ~= incarnation then return refuse('INC') end
  if applied > tip or (applied == tip and ARGV[9] ~= digest) then return refuse('FORK') end
  if applied < tip then
    records = call('XRANGE', stream, text(applied + 1) .. '-0', '+', 'COUNT', text(limits().batch))
    if not records[1] or records[1][1] ~= text(applied + 1) .. '-0' then return refuse('GAP') end
    -- The first record that follows proves the digest that the member has: its own was made from it.
    if redis.sha1hex(ARGV[9] .. records[1][2][2]) ~= records[1][2][4] then return refuse('FORK') end
  end
  local value = number .. ' ' .. ARGV[10] .. ' ' .. ARGV[11] .. ' 0 ' .. ARGV[12]
  if call('HSET', members, ARGV[5], value) == 1 then
    if call('HLEN', members) > limits().members and not displace() then
      call('HDEL', members, ARGV[5])
      return answer('REFUSED', 'members')
    end
    call('HSET', state, 'members', text(call('HLEN', members)))
  end
  return answer('OK', number, records)
end

local function remove(key, fields)
  for first = 1, #fields, 512 do
    call('HDEL', key, unpacked(fields, first, math.min(first + 511, #fields)))
  end
end

-- Of fields and their revisions, by turns, those whose name begins so, without the newest `left` of them; in no order.
local function oldest(flat, prefix, left)
  local revisions, found = {}, {}
  for at = 1, #flat, 2 do
    if string.sub(flat[at], 1, #prefix) == prefix then revisions[#revisions + 1] = tonumber(flat[at + 1]) end
  end
  table.sort(revisions)
  local last = revisions[#revisions - left] or 0  -- no two are the same
  for at = 1, #flat, 2 do
    local revision = tonumber(flat[at + 1])
    if revision <= last and string.sub(flat[at], 1, #prefix) == prefix then
      found[#found + 1] = { name = flat[at], revision = revision }
    end
  end
  return found
end

local function raise(scope, revision)
  if revision > tonumber(call('HGET', floors, scope) or '0') then call('HSET', floors, scope, text(revision)) end
end

-- Drops tombstones, the floors of their scopes raised to their own revisions.
local function drop(list)
  local fields, highest, counts = {}, {}, {}
  for at, tombstone in ipairs(list) do
    local scope = string.sub(tombstone.name, 1, 1) == FLEET and FLEET or string.sub(tombstone.name, 1, 33)
    fields[at], counts[scope] = tombstone.name, (counts[scope] or 0) + 1
    highest[scope] = math.max(highest[scope] or 0, tombstone.revision)
  end
  remove(tombstones, fields)
  for scope, revision in pairs(highest) do
    raise(scope, revision)
    local left = tonumber(call('HGET', scopes, scope) or '0') - counts[scope]
    if left > 0 then call('HSET', scopes, scope, text(left)) else call('HDEL', scopes, scope) end
  end
end

-- Rule R4, as `invalidation.compaction` says it step by step.
local function keep(kind, scope, selector, revision, most)
  if kind == 'E' then
    call('UNLINK', tombstones, floors, scopes)
    call('HSET', floors, FLEET, revision)
  elseif kind == 'N' then
    call('HSET', floors, scope, revision)
  else
    local count = tonumber(call('HGET', scopes, scope) or '0') + call('HSET', tombstones, scope .. selector, revision)
    call('HSET', scopes, scope, text(count))
    if count > most.per_scope then
      drop(oldest(call('HGETALL', tombstones), scope, math.floor(most.per_scope / 2)))
    end
    if call('HLEN', tombstones) > most.tombstones then
      drop(oldest(call('HGETALL', tombstones), '', math.floor(most.tombstones / 2)))
    end
  end
  if call('HLEN', floors) - call('HEXISTS', floors, FLEET) > most.scopes then
    local gone = {}
    for at, floor in ipairs(oldest(call('HGETALL', floors), 'n', math.floor(most.scopes / 2))) do
      gone[at] = floor.name
      raise(FLEET, floor.revision)
    end
    remove(floors, gone)
  end
  call('HSET', state, 'tombstones', text(call('HLEN', tombstones)), 'floors', text(call('HLEN', floors)),
    'scopes', text(call('HLEN', scopes)))
end

local function announce(model, version, revision, most)
  call('HSET', weights, model, revision .. ' ' .. version)
  if call('HLEN', weights) > most.weights then
    local flat = call('HGETALL', weights)
    for at = 2, #flat, 2 do flat[at] = string.match(flat[at], '^%d+') end
    call('HDEL', weights, oldest(flat, '', most.weights)[1].name)
  end
  call('HSET', state, 'weights', text(call('HLEN', weights)))
end

-- 5 request id, 6 payload, 7 kind: "E" everything; "N" a namespace, 8 its scope; "T" anything else that is selected, 8 scope,
-- 9 selector; "W" announced weights, 8 model, 9 version -> revision, ids of the members
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
    keep(ARGV[7], ARGV[8], ARGV[9], revision, most)
  end
  local place = 's' .. text(tip % most.requests)
  local before = call('HGET', requests, place)
  if before then call('HDEL', requests, 'i' .. before) end
  call('HSET', requests, place, ARGV[5], 'i' .. ARGV[5], revision)
  call('HSET', state, 'tip', revision, 'digest', digest)
  return answer('OK', revision, call('HKEYS', members))
end

-- -> digest, floors, tombstones, weights, each field and value by turns (rule R9)
if verb == 'boot' then
  return answer('OK', digest, call('HGETALL', floors), call('HGETALL', tombstones), call('HGETALL', weights))
end

-- -> members, id and value by turns
if verb == 'fence' then
  mark()
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

-- 5 member, 6 number, 7 whether it has drained, 1 or 0 -> 1, or 0 if it has renewed since or is not there
if verb == 'leave' then
  local number, acknowledged, drained, note =
    string.match(call('HGET', members, ARGV[5]) or '', '^(%d+) (%d+) (%d+) %d (.*)$')
  if number ~= ARGV[6] then return answer('OK', '0') end
  if ARGV[7] == '1' then
    call('HDEL', members, ARGV[5])
    call('HSET', state, 'members', text(call('HLEN', members)))
  else
    call('HSET', members, ARGV[5], number .. ' ' .. acknowledged .. ' ' .. drained .. ' 1 ' .. note)
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

-- 5… canonical encodings
if verb == 'know' then
  local most, entries = limits(), tonumber(call('HGET', state, 'known'))
  for at = 5, #ARGV do
    local id = redis.sha1hex(ARGV[at])
    entries = entries + 1
    call('HSET', known, id, text(entries))
    if call('HSET', namespaces, id, ARGV[at]) == 1 and call('HLEN', namespaces) > most.namespaces then
      local longest_ago = oldest(call('HGETALL', known), '', most.namespaces)[1].name
      call('HDEL', known, longest_ago)
      call('HDEL', namespaces, longest_ago)
    end
  end
  call('HSET', state, 'known', text(entries), 'namespaces', text(call('HLEN', namespaces)))
  return answer('OK')
end

-- Without more -> sha1 of each namespace. 5… some of those -> their canonical encodings, nil for one that is gone
if verb == 'namespaces' then
  if #ARGV == 4 then return answer('OK', call('HKEYS', namespaces)) end
  local ids = {}
  for at = 5, #ARGV do ids[#ids + 1] = ARGV[at] end
  return answer('OK', call('HMGET', namespaces, unpacked(ids, 1, #ids)))
end

-- -> records, tombstones, floors, scopes, members, requests, weights, namespaces: how many there are
if verb == 'statistics' then
  local sizes = { text(call('XLEN', stream)) }
  for _, key in ipairs({ tombstones, floors, scopes, members }) do sizes[#sizes + 1] = text(call('HLEN', key)) end
  sizes[#sizes + 1] = text(call('HLEN', requests) / 2)
  sizes[#sizes + 1] = text(call('HLEN', weights))
  sizes[#sizes + 1] = text(call('HLEN', namespaces))
  return answer('OK', sizes)
end

return answer('REFUSED', 'verb')
