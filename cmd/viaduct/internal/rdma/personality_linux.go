//go:build linux && (amd64 || arm64)

package rdma

import (
	"fmt"
	"strings"

	"viaduct/cmd/viaduct/internal/rdma/abi"
)

// A personality describes the kernel driver a device imitates, such as siw. Netlink, the ioctl
// header and sysfs all use the personality.
//
// Another personality needs another table like siw, and a case in personalityOf.
type personality struct {
	driver abi.Driver
	kind   string // name for users
	desc   string // node_desc
	// gids returns the GID table of the port, by index. All entries can be read, because programs
	// read every entry and some give up at the first failure.
	gids func(d *device) []gidEntry
	// files returns files of sysfs absent from other personalities, or with other text there. Names
	// are relative to /sys/class/infiniband/NAME.
	files func(d *device) []sysFile
	// queryDevice and queryPort return the responses to the commands of the same names.
	queryDevice, queryPort func(d *device) abi.Body
	// handlers serve commands other personalities do not have, or serve differently.
	handlers map[abi.Command]func(*command)
}

// siw imitates the kernel's software iWARP.
var siw = &personality{
	driver: abi.SIW,
	kind:   "iWARP",
	desc:   "Software iWARP stack",
	gids: func(d *device) []gidEntry {
		g := gidEntry{kind: gidIB, ndev: d.found.NetName}
		copy(g.gid[:], d.mac[:]) // the hardware address, as in the kernel's siw
		return []gidEntry{g}
	},
	files: func(*device) []sysFile {
		return []sysFile{{"ports/1/rate", "2.5 Gb/sec (1X SDR)"}}
	},
	queryDevice: (*device).queryDevice,
	queryPort:   (*device).queryPort,
}

// personalityOf returns the personality of a device by name.
func personalityOf(name string) *personality {
	if isRoCE(name) {
		return roce
	}
	return siw
}

// A gidEntry is an entry of the GID table of a port.
type gidEntry struct {
	gid  [16]byte
	kind gidKind
	ndev string // the network interface
}

// A gidKind is the type of a GID in the kernel's numbering.
type gidKind uint32

const (
	gidIB     gidKind = 0 // also for iWARP
	gidRoCEv2 gidKind = 2
)

// String returns the text of gid_attrs/types. libibverbs compares the whole text.
func (k gidKind) String() string {
	if k == gidRoCEv2 {
		return "RoCE v2"
	}
	return "IB/RoCE v1"
}

func (g gidEntry) String() string {
	a := g.gid
	var parts []string
	for i := 0; i < len(a); i += 2 {
		parts = append(parts, fmt.Sprintf("%02x%02x", a[i], a[i+1]))
	}
	return strings.Join(parts, ":")
}

// A sysFile is a file of sysfs and its text, without the newline.
type sysFile struct{ name, text string }

// nodeTypes are the values of node_type.
var nodeTypes = map[uint8]string{abi.NodeCA: "1: CA", abi.NodeRNIC: "4: RNIC"}

// sysFiles returns the files of a device below /sys/class/infiniband/NAME. If a name occurs twice,
// the later file counts.
func (d *device) sysFiles() []sysFile {
	guid := abi.GUIDString(d.found.GUID)
	all := []sysFile{
		{"node_type", nodeTypes[d.is.driver.Node]},
		{"node_guid", guid},
		{"sys_image_guid", guid},
		{"node_desc", d.is.desc},
		{"fw_ver", ""},
		{"hw_rev", "0"},
		{"device/numa_node", "-1"},
		{"ports/1/state", "4: ACTIVE"},
		{"ports/1/phys_state", "5: LinkUp"},
		{"ports/1/link_layer", "Ethernet"},
		{"ports/1/lid", "0x0"},
		{"ports/1/sm_lid", "0x0"},
		{"ports/1/sm_sl", "0"},
		{"ports/1/lid_mask_count", "0"},
		{"ports/1/cap_mask", "0x00000000"},
		{"ports/1/has_smi", "0"},
		{"ports/1/pkeys/0", "0xffff"},
	}
	for i, g := range d.gids.entries() {
		all = append(all, gidFiles(i, g)...)
	}
	return append(all, d.is.files(d)...)
}
