package verbs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/nvme"
)

// nvmeDisks manages the disks of a target and the operands with their names.
type nvmeDisks struct {
	plan     *nvmePlan
	target   *nvme.Target
	env      *shell.Env
	operands []string
	served   map[diskName]*nvmeDisk
}

// A diskName identifies a disk. It includes the operand, because two operands may name the same
// file.
type diskName struct {
	operand int
	name    string // mem:SIZE, a file, or a file of the directory that the operand names
}

// An nvmeDisk is a disk the target serves.
type nvmeDisk struct {
	id   uint32
	size int64
	file *os.File // nil for memory
}

// add adds the disks of all operands when the command starts. It stops at the first error.
func (d *nvmeDisks) add() error {
	for _, n := range d.names() {
		if err := d.addDisk(n); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// reload makes the served disks agree with the present files. It removes a disk whose file is gone
// or was replaced by another file, for example by a rename. It changes the size of a disk whose
// file has another size. It adds new and restored files of a directory. An error is logged and
// concerns only a single disk; the result is always nil.
func (d *nvmeDisks) reload() error {
	names := d.names()
	for n, k := range d.served {
		if !slices.Contains(names, n) || k.replaced(n.name) {
			d.remove(n)
		}
	}
	for _, n := range names {
		if err := d.update(n); err != nil {
			d.env.Log.Error("disk not served as it is now", "file", n.name, "err", err)
		}
	}
	return nil
}

// names returns the names of all disks the operands name now, in the order of the operands.
func (d *nvmeDisks) names() []diskName {
	var names []diskName
	for i, o := range d.operands {
		entries, err := os.ReadDir(o)
		if err != nil { // o is not a directory
			names = append(names, diskName{i, o})
			continue
		}
		for _, e := range entries {
			if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, diskName{i, filepath.Join(o, e.Name())})
			}
		}
	}
	return names
}

// replaced reports whether name no longer names the disk's file: the name is gone, or names another
// file. It returns false for memory.
func (k *nvmeDisk) replaced(name string) bool {
	if k.file == nil {
		return false
	}
	is, err := os.Stat(name)
	if err != nil {
		return true
	}
	was, err := k.file.Stat()
	return err != nil || !os.SameFile(was, is)
}

// update adds the disk n if n is not served yet. Otherwise, update changes the size of the disk to
// the size of the file.
func (d *nvmeDisks) update(n diskName) error {
	k := d.served[n]
	switch {
	case k == nil:
		return d.addLater(n)
	case k.file == nil:
		return nil
	}
	size, err := k.file.Seek(0, io.SeekEnd)
	if err != nil || size == k.size {
		return err
	}
	if d.plan.mapped { // a mapping cannot grow, so the file is mapped again
		d.remove(n)
		return d.addLater(n)
	}
	if err := d.target.Resize(k.id, size); err != nil {
		return err
	}
	k.size = size
	d.env.Notice("disk resized", "file", n.name, "namespace", k.id, "bytes", size)
	return nil
}

// addLater adds a disk after the start of the target. It does nothing if the file does not exist.
func (d *nvmeDisks) addLater(n diskName) error {
	err := d.addDisk(n)
	switch {
	case err == nil:
		d.env.Notice("disk added", "file", n.name, "namespace", d.served[n].id)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

func (d *nvmeDisks) addDisk(name diskName) error {
	n, file, err := d.plan.disk(name.name)
	if err != nil {
		return err
	}
	id, err := d.target.Add(n)
	if err != nil {
		n.Release()
		return err
	}
	d.served[name] = &nvmeDisk{id: id, size: n.Size, file: file}
	return nil
}

func (d *nvmeDisks) remove(name diskName) {
	k := d.served[name]
	delete(d.served, name)
	d.target.Remove(k.id) // cannot fail, because only this type removes disks
	d.env.Notice("disk removed", "file", name.name, "namespace", k.id)
}

// disk opens the memory or file of a name. Release of the namespace closes the file. For memory,
// file is nil.
func (p *nvmePlan) disk(name string) (n nvme.Namespace, file *os.File, err error) {
	if size, ok := strings.CutPrefix(name, "mem:"); ok {
		n, err = memoryDisk(size)
	} else {
		n, file, err = p.fileDisk(name)
	}
	n.BlockSize, n.ReadOnly = p.block, p.readOnly
	return n, file, err
}

func memoryDisk(size string) (n nvme.Namespace, err error) {
	bytes, err := addr.ParseSize(size)
	switch {
	case err != nil:
		return n, shell.Usage(err)
	case bytes < 4096 || bytes > math.MaxInt64/2:
		return n, shell.Usagef("memory of %d bytes is no disk", bytes)
	}
	n = nvme.Memory(int64(bytes))
	n.Release = func() {}
	return n, nil
}

func (p *nvmePlan) fileDisk(name string) (n nvme.Namespace, file *os.File, err error) {
	flags := os.O_RDWR
	if p.readOnly {
		flags = os.O_RDONLY
	}
	file, err = os.OpenFile(name, flags, 0)
	if err != nil {
		return n, nil, err
	}
	if p.mapped {
		n, err = nvme.MapFile(file, p.readOnly)
	} else {
		n, err = nvme.File(file)
	}
	if err != nil {
		file.Close()
		return n, nil, err
	}
	unmap := n.Release
	n.Release = func() {
		if unmap != nil {
			unmap()
		}
		file.Close()
	}
	return n, file, nil
}
