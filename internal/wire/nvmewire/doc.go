// Package nvmewire is the codec of NVMe over Fabrics on RDMA: capsules with submission and
// completion queue entries, SGL descriptors, the private data of a connection, and the data
// structures of Connect, Identify, Get Log Page and Dataset Management. All integers are
// little-endian, unlike in the layers below.
//
// The sources are public: Linux (include/linux/nvme.h, nvme-rdma.h, drivers/nvme) and the capsules
// sent by Linux's host; docs/requirements/nvme-requirements.md has the rows.
package nvmewire
