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

// nvmeDisks are the namespaces of a target, and the operands that they come from.
type nvmeDisks struct {
	plan     *nvmePlan
	target   *nvme.Target
	env      *shell.Env
	operands []string
	served   map[diskName]*nvmeDisk
}

// A diskName tells a disk from others: the same file may be named by two operands.
type diskName struct {
	operand int
	name    string // mem:SIZE, a file, or a file of the directory that the operand names
}

// An nvmeDisk is a disk that is served.
type nvmeDisk struct {
	id   uint32
	size int64
	file *os.File // nil for memory
}

// add adds the disks of all operands, at the start.
func (d *nvmeDisks) add() error {
	for _, n := range d.names() {
		if err := d.addDisk(n); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// reload looks at the files again. It removes a disk whose file is gone or is another one, changes
// the size of a disk whose file has another size, and adds files that are new in a directory or have
// come back. What fails for one disk is logged, and does not concern the others.
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

// names returns the names of all disks that there should be, in the order of their operands.
func (d *nvmeDisks) names() []diskName {
	var names []diskName
	for i, o := range d.operands {
		entries, err := os.ReadDir(o)
		if err != nil { // no directory
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

// replaced reports whether the name is no longer that of the open file.
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

// update adds a disk, or changes its size to that of its file.
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
	if d.plan.mapped { // a mapping cannot grow
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

// addLater adds a disk to a target that has hosts, if its file is there.
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
	d.target.Remove(k.id) // is there: only this type removes disks
	d.env.Notice("disk removed", "file", name.name, "namespace", k.id)
}

// disk opens what an operand names. The file belongs to the namespace, whose Release closes it.
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
