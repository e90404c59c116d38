//go:build linux && (amd64 || arm64)

package rdma

import (
	"debug/elf"
	"fmt"
	"slices"
)

// vendorLibraries are the direct interfaces of a manufacturer's adapters. Programs use the
// interfaces without verbs.
var vendorLibraries = []struct{ soname, needs string }{
	{"libmlx5.so.1", "an mlx5 adapter (mlx5dv)"},
	{"libmlx4.so.1", "an mlx4 adapter (mlx4dv)"},
	{"libefa.so.1", "an EFA adapter (efadv)"},
	{"libmana.so.1", "a MANA adapter (manadv)"},
	{"libhns.so.1", "an hns adapter (hnsdv)"},
}

// explainVendor explains in one line that the program of a thread is linked with a vendor library.
func (s *Service) explainVendor(tid int) {
	if s.opt.Explain == nil {
		return
	}
	f, err := elf.Open(fmt.Sprintf("/proc/%d/exe", tid))
	if err != nil {
		return
	}
	defer f.Close()
	linked, err := f.ImportedLibraries()
	if err != nil {
		return
	}
	for _, v := range vendorLibraries {
		if !slices.Contains(linked, v.soname) {
			continue
		}
		if _, told := s.told.LoadOrStore(v.soname, true); !told {
			s.explain("%s is linked with %s: what it does by that library needs %s; an emulated device has verbs alone",
				programName(tid), v.soname, v.needs)
		}
	}
}
