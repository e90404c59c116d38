-- SDP over iWARP (draft-pinkerton-iwarp-sdp-01). "sdp" is another protocol of
-- Wireshark: fields are those of "viaduct decode" with iwarp_sdp for sdp.
--
-- A connection is recognised by the Hello, which is in the private data of the MPA
-- Request or ahead of it. For captures that lack it, set the preference "TCP port".

local p = Proto("iwarp_sdp", "Sockets Direct Protocol over iWARP")

local BSDH, HELLO, HELLO_ACK = 16, 32, 28

local mids = {
	[0x00] = "Hello", [0x01] = "HelloAck", [0x02] = "DisConn", [0x03] = "AbortConn", [0x04] = "SendSm", [0x05] = "RdmaWrCompl",
	[0x06] = "RdmaRdCompl", [0x07] = "ModeChange", [0x08] = "SrcAvailCancel", [0x09] = "SinkAvailCancel", [0x0a] = "SinkCancelAck",
	[0x0b] = "ChRcvBuf", [0x0c] = "ChRcvBufAck", [0x0d] = "SuspComm", [0x0e] = "SuspCommAck", [0xfd] = "SinkAvail",
	[0xfe] = "SrcAvail", [0xff] = "Data",
}
local headers = {
	[0x02] = 16, [0x03] = 16, [0x04] = 16, [0x05] = 20, [0x06] = 20, [0x07] = 20, [0x08] = 16, [0x09] = 16, [0x0a] = 16,
	[0x0b] = 20, [0x0c] = 20, [0x0d] = 24, [0x0e] = 16, [0xfd] = 36, [0xfe] = 32, [0xff] = 16,
}
local modes = { [0] = "Buffered", [1] = "Combined", [2] = "Pipelined" }

local f = {
	mid = ProtoField.uint8("iwarp_sdp.mid", "MID", base.DEC, mids),
	layout = ProtoField.string("iwarp_sdp.layout", "Layout"),
	flags = ProtoField.string("iwarp_sdp.flags", "Flags"),
	bufs = ProtoField.uint16("iwarp_sdp.bufs", "Bufs"),
	len = ProtoField.uint32("iwarp_sdp.len", "Len"),
	mseq = ProtoField.uint32("iwarp_sdp.mseq", "MSeq"),
	mseqack = ProtoField.uint32("iwarp_sdp.mseqack", "MSeqAck"),
	size = ProtoField.uint32("iwarp_sdp.size", "Size"),
	stag = ProtoField.uint32("iwarp_sdp.stag", "STag", base.HEX),
	va = ProtoField.uint64("iwarp_sdp.va", "VA", base.HEX),
	non_discards = ProtoField.uint32("iwarp_sdp.non_discards", "NonDiscards"),
	mode = ProtoField.string("iwarp_sdp.mode", "Mode"),
	s = ProtoField.bool("iwarp_sdp.s", "S"),
	port = ProtoField.uint16("iwarp_sdp.port", "Destination TCP Port"),
	payload = ProtoField.uint32("iwarp_sdp.payload", "Payload Length"),
	max_adverts = ProtoField.uint16("iwarp_sdp.max_adverts", "MaxAdverts"),
	des_rem_rcv_sz = ProtoField.uint32("iwarp_sdp.des_rem_rcv_sz", "DesRemRcvSz"),
	local_rcv_sz = ProtoField.uint32("iwarp_sdp.local_rcv_sz", "LocalRcvSz"),
	act_rcv_sz = ProtoField.uint32("iwarp_sdp.act_rcv_sz", "ActRcvSz"),
	loc_ird = ProtoField.uint16("iwarp_sdp.loc_ird", "LocIRD"),
	loc_ord = ProtoField.uint16("iwarp_sdp.loc_ord", "LocORD"),
}
p.fields = f

p.prefs.port = Pref.uint("TCP port", 0, "Take iWARP connections of this port for SDP")

local unknown = ProtoExpert.new("iwarp_sdp.bad_mid", "Unknown or unexpected MID", expert.group.MALFORMED, expert.severity.ERROR)
local wrong = ProtoExpert.new("iwarp_sdp.bad_len", "Len does not fit the message", expert.group.MALFORMED, expert.severity.ERROR)
local reserved = ProtoExpert.new("iwarp_sdp.bad_mode", "Reserved mode", expert.group.MALFORMED, expert.severity.ERROR)
p.experts = { unknown, wrong, reserved }

local stream = Field.new("tcp.stream")
local private = Field.new("iwarp_mpa.privatedata")
local offset = Field.new("iwarp_ddp.mo")

local layouts = {} -- by number of the TCP stream: "figure" or "ibta"

function p.init()
	layouts = {}
end

-- hello tells the layout of a Hello, or nil if b is none.
local function hello(b)
	if b:len() < HELLO or b(4, 4):uint() ~= HELLO then
		return nil
	end
	local head = b(0, 4):uint()
	if bit.band(head, 0xffff) == 0 and head ~= 0 then
		return "figure"
	elseif bit.rshift(head, 16) == 0 and head ~= 0 then
		return "ibta"
	end
	return nil
end

local function at(layout, figure, ibta)
	if layout == "ibta" then
		return ibta
	end
	return figure
end

-- greeting shows the fields of a Hello or HelloAck.
local function greeting(t, b, layout, ack)
	t:add(f.mid, b(at(layout, 3, 0), 1))
	if not ack then
		t:add(f.layout, b(0, 4), layout)
	end
	t:add(f.bufs, b(at(layout, 0, 2), 2))
	t:add(f.len, b(4, 4))
	t:add(f.max_adverts, b(at(layout, 16, 18), 2))
	local n = 20
	if ack then
		t:add(f.act_rcv_sz, b(20, 4))
	else
		t:add(f.des_rem_rcv_sz, b(20, 4))
		t:add(f.local_rcv_sz, b(24, 4))
		n = 24
	end
	t:add(f.loc_ird, b(n + at(layout, 4, 6), 2))
	t:add(f.loc_ord, b(n + at(layout, 6, 4), 2))
end

local function flagNames(v)
	local s = {}
	for i, name in ipairs({ "OOB_PRES", "OOB_PEND", "REQ_PIPE" }) do
		if bit.band(v, bit.lshift(1, i - 1)) ~= 0 then
			s[#s + 1] = name
		end
	end
	return table.concat(s, "|")
end

-- message shows the message that begins in b; whole says that b is all of it.
local function message(b, pinfo, tree, layout, whole)
	local t = tree:add(p, b)
	local mid, length = b(at(layout, 3, 0), 1):uint(), b(4, 4):uint()
	pinfo.cols.protocol = "SDP/iWARP"
	t:append_text(", " .. (mids[mid] or string.format("MID 0x%02x", mid)))
	pinfo.cols.info:append(" [SDP " .. (mids[mid] or "unknown") .. "]")
	if mid == 1 and whole and b:len() == HELLO_ACK and length == HELLO_ACK then
		greeting(t, b, layout, true)
		return
	end
	t:add(f.mid, b(at(layout, 3, 0), 1))
	local flags = bit.band(b(at(layout, 2, 1), 1):uint(), 7)
	local n = headers[mid]
	if flags ~= 0 then
		t:add(f.flags, b(at(layout, 2, 1), 1), flagNames(flags))
	end
	if not n then
		t:add_proto_expert_info(unknown)
	elseif length < n or b:len() < n or whole and length ~= b:len() or length > n and mid < 0xfd then
		t:add_proto_expert_info(wrong)
		n = nil
	end
	t:add(f.len, b(4, 4))
	if not n then
		return
	end
	t:add(f.bufs, b(at(layout, 0, 2), 2))
	t:add(f.mseq, b(8, 4))
	t:add(f.mseqack, b(12, 4))
	if mid == 0xfd or mid == 0xfe then
		t:add(f.size, b(16, 4))
		t:add(f.stag, b(20, 4))
		t:add(f.va, b(24, 8))
		if mid == 0xfd then
			t:add(f.non_discards, b(32, 4))
		end
	elseif mid == 5 or mid == 6 or mid == 0x0b or mid == 0x0c then
		t:add(f.size, b(16, 4))
	elseif mid == 7 then
		local mode, s
		if layout == "ibta" then
			mode, s = b(16, 1):bitfield(1, 3), b(16, 1):bitfield(0, 1)
		else
			mode, s = b(19, 1):bitfield(4, 3), b(19, 1):bitfield(7, 1)
		end
		if not modes[mode] then
			t:add_proto_expert_info(reserved)
		else
			t:add(f.mode, b(16, 4), modes[mode])
			t:add(f.s, b(16, 4), s == 1)
		end
	elseif mid == 0x0d then
		t:add(f.port, b(at(layout, 20, 22), 2))
	end
	if length > n then
		t:add(f.payload, b(4, 4), length - n)
	end
end

-- A Hello ahead of MPA's start-up.
p:register_heuristic("tcp", function(tvb, pinfo, tree)
	if tvb:len() < HELLO or tvb(0, 3):raw() == "MPA" then
		return false
	end
	local layout, s = hello(tvb()), stream()
	if not layout or not s or tvb(at(layout, 3, 0), 1):uint() ~= 0 or bit.band(tvb(at(layout, 2, 1), 1):uint(), 0xff) ~= 0 then
		return false
	end
	layouts[s.value] = layout
	pinfo.cols.protocol = "SDP/iWARP"
	greeting(tree:add(p, tvb(0, HELLO)):append_text(", Hello"), tvb(0, HELLO), layout, false)
	return true
end)

-- greeted looks for a Hello in the private data of an MPA Request.
local function greeted(d, s, pinfo, tree)
	local from, n = d.offset, d.len
	-- In revision 2 with the S bit the depths come first.
	if d.source(from - 3, 1):uint() == 2 and d.source(from - 4, 1):bitfield(3, 1) == 1 and n >= 4 then
		from, n = from + 4, n - 4
	end
	if n ~= HELLO and n ~= HELLO + 16 then -- 16 bytes of token may follow
		return
	end
	local b = d.source(from, n)
	local layout = hello(b)
	if layout then
		layouts[s.value] = layout
		pinfo.cols.protocol = "SDP/iWARP"
		greeting(tree:add(p, b):append_text(", Hello"), b, layout, false)
	end
end

-- The rest runs behind the other dissectors: MPA's hands private data to none, and
-- RDMAP's offers only the first Send of a packet.
local watch = Proto("iwarp_sdp_watch", "SDP over iWARP, messages in Sends")
function watch.dissector(_, pinfo, tree)
	local s = stream()
	if not s then
		return
	end
	local d = private()
	if d and d.offset >= 20 then
		greeted(d, s, pinfo, tree)
	end
	local layout = layouts[s.value]
	if not layout and p.prefs.port ~= 0 and (pinfo.src_port == p.prefs.port or pinfo.dst_port == p.prefs.port) then
		layout = "figure"
	end
	if not layout then
		return
	end
	for _, mo in ipairs({ offset() }) do
		local src, at_ = mo.source, mo.offset
		if at_ >= 16 then
			local length = src(at_ - 16, 2):uint() - 18
			local op = src(at_ - 13, 1):bitfield(4, 4)
			if op >= 3 and op <= 6 and mo.value == 0 and length >= BSDH and at_ + 4 + length <= src:len() then
				message(src(at_ + 4, length), pinfo, tree, layout, src(at_ - 14, 1):bitfield(1, 1) == 1)
			end
		end
	end
end
register_postdissector(watch)
