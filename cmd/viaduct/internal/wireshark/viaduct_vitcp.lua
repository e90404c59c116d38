-- VI/TCP: the Virtual Interface Architecture over TCP (draft-dicecco-vitcp-00).
-- Fields are named as those of "viaduct decode".

local p = Proto("vitcp", "VI Architecture over TCP")

local VERSION, HEADER, RDMA, CE = 1, 24, 16, 44

local types = {
	[0] = "Send", [1] = "RDMA Read Request", [2] = "RDMA Read Response", [3] = "RDMA Write", [4] = "NOP",
	[5] = "Connect Request", [6] = "Connect Accept", [7] = "Connect Reject", [8] = "Connect No Match", [31] = "Disconnect",
}
local attributes = { "reliable", "rdma-write", "rdma-read", "flow-control", "peer-to-peer", "reliable-delivery" }
local flags = { "immediate", "end", "transmit-error" }
local errors = { [0] = "no error", [1] = "RDMA memory protection error", [2] = "VI descriptor error" }
local reasons = {
	[0] = "no reason given", [1] = "attributes do not match", [2] = "refused by the VI consumer", [3] = "out of resources",
	[4] = "unknown version", [5] = "crossed by the kept connection",
}

local f = {
	type = ProtoField.uint8("vitcp.type", "Type", base.DEC, types, 0xf8),
	flags = ProtoField.string("vitcp.flags", "Flags"),
	length = ProtoField.uint16("vitcp.length", "Length"),
	offset = ProtoField.uint32("vitcp.offset", "Data Offset"),
	immediate = ProtoField.uint32("vitcp.immediate", "Immediate Data", base.HEX),
	number = ProtoField.uint32("vitcp.number", "Message Number"),
	ack = ProtoField.uint32("vitcp.ack", "Message ACK"),
	posted = ProtoField.uint16("vitcp.posted", "Receive Descriptors Posted"),
	error = ProtoField.string("vitcp.error", "Remote Error"),
	address = ProtoField.uint64("vitcp.address", "Remote Address", base.HEX),
	handle = ProtoField.uint32("vitcp.handle", "Memory Handle", base.HEX),
	rdma_length = ProtoField.uint32("vitcp.rdma_length", "RDMA Length"),
	attributes = ProtoField.string("vitcp.attributes", "Attributes"),
	mtu = ProtoField.uint32("vitcp.mtu", "MTU"),
	calling = ProtoField.string("vitcp.calling", "Calling Discriminator"),
	called = ProtoField.string("vitcp.called", "Called Discriminator"),
	read_window = ProtoField.uint16("vitcp.read_window", "Read Window"),
	reason = ProtoField.string("vitcp.reason", "Reason"),
	payload = ProtoField.uint32("vitcp.payload", "Payload Length"),
	data = ProtoField.bytes("vitcp.data", "Payload"),
}
p.fields = f

local version = ProtoExpert.new("vitcp.bad_version", "Unknown version", expert.group.MALFORMED, expert.severity.ERROR)
local kind = ProtoExpert.new("vitcp.bad_type", "Unknown type", expert.group.MALFORMED, expert.severity.ERROR)
local short = ProtoExpert.new("vitcp.bad_length", "Length is shorter than the headers", expert.group.MALFORMED, expert.severity.ERROR)
p.experts = { version, kind, short }

-- names joins the names of the bits of v that are set; the others are hex.
local function names(v, list)
	local t = {}
	for i, name in ipairs(list) do
		if bit.band(v, bit.lshift(1, i - 1)) ~= 0 then
			t[#t + 1] = name
		end
	end
	local rest = bit.band(v, bit.bnot(bit.lshift(1, #list) - 1))
	if rest ~= 0 then
		t[#t + 1] = string.format("0x%x", rest)
	end
	if #t == 0 then
		return "-"
	end
	return table.concat(t, "|")
end

-- discriminator is quoted if it is text, and hex if not.
local function discriminator(b)
	local raw = b:raw()
	if raw:find("[^\32-\126]") then
		return "0x" .. b:bytes():tohex(true)
	end
	return '"' .. raw:gsub('[\\"]', "\\%0") .. '"'
end

local function name(list, v, other)
	return list[v] or string.format("%s 0x%x", other, v)
end

local function headers(type)
	if type >= 5 and type <= 8 then
		return HEADER + CE
	elseif type >= 1 and type <= 3 then
		return HEADER + RDMA
	end
	return HEADER
end

local function segment(tvb, pinfo, tree)
	pinfo.cols.protocol = "VI/TCP"
	local type = tvb(1, 1):bitfield(0, 5)
	local t = tree:add(p, tvb())
	if tvb(0, 1):uint() ~= VERSION then
		t:add_proto_expert_info(version)
		return tvb:len()
	end
	if not types[type] then
		t:add_proto_expert_info(kind)
		return tvb:len()
	end
	local n = headers(type)
	if tvb:len() < n then
		t:add_proto_expert_info(short)
		return tvb:len()
	end
	t:append_text(", " .. types[type])
	local fl = tvb(1, 1):bitfield(5, 3)
	t:add(f.type, tvb(1, 1))
	t:add(f.flags, tvb(1, 1), names(fl, flags))
	t:add(f.length, tvb(2, 2))
	t:add(f.offset, tvb(4, 4))
	t:add(f.number, tvb(12, 4))
	t:add(f.ack, tvb(16, 4))
	t:add(f.posted, tvb(20, 2))
	if bit.band(fl, 1) ~= 0 then
		t:add(f.immediate, tvb(8, 4))
	end
	local vi, is = tvb(22, 1):uint(), tvb(23, 1):uint()
	if vi ~= 0 or is ~= 0 then
		local s = name(errors, vi, "VI error")
		if is ~= 0 then
			s = s .. string.format(" (0x%x)", is)
		end
		t:add(f.error, tvb(22, 2), s)
	end
	if n == HEADER + RDMA then
		t:add(f.address, tvb(24, 8))
		t:add(f.handle, tvb(32, 4))
		t:add(f.rdma_length, tvb(36, 4))
	elseif n == HEADER + CE then
		local calling, called = tvb(26, 2):uint(), tvb(50, 2):uint()
		t:add(f.attributes, tvb(24, 2), names(tvb(24, 2):uint(), attributes))
		t:add(f.mtu, tvb(28, 4))
		if calling <= 16 and called <= 16 then
			t:add(f.calling, tvb(32, 16), calling > 0 and discriminator(tvb(32, calling)) or '""')
			t:add(f.called, tvb(52, 16), called > 0 and discriminator(tvb(52, called)) or '""')
		end
		t:add(f.read_window, tvb(48, 2))
		if type == 7 then
			t:add(f.reason, tvb(23, 1), name(reasons, is, "reason"))
		end
	end
	t:add(f.payload, tvb(2, 2), tvb:len() - n)
	if tvb:len() > n then
		t:add(f.data, tvb(n))
	end
	pinfo.cols.info:append(" [VI/TCP " .. types[type] .. "]")
	return tvb:len()
end

local function length(tvb, _, offset)
	return math.max(tvb(offset + 2, 2):uint(), HEADER)
end

local function stream(tvb, _, tree)
	dissect_tcp_pdus(tvb, tree, HEADER, length, segment, true)
	return tvb:len()
end

p.dissector = stream

DissectorTable.get("tcp.port"):add(3936, p)

-- Elsewhere a connection is recognised by the Connect Request that opens it, of which
-- the first packet may hold the header alone.
p:register_heuristic("tcp", function(tvb, pinfo, tree)
	if tvb:len() < HEADER or tvb(0, 1):uint() ~= VERSION then
		return false
	end
	local type = tvb(1, 1):bitfield(0, 5)
	if type < 5 or type > 8 or tvb(2, 2):uint() < HEADER + CE or tvb(4, 4):uint() ~= 0 then
		return false
	end
	if tvb:len() >= HEADER + CE and (tvb(26, 2):uint() > 16 or tvb(50, 2):uint() > 16) then
		return false
	end
	pinfo.conversation = p
	stream(tvb, pinfo, tree) -- not p.dissector, in which a PDU may not go on in the next packet
	return true
end)
