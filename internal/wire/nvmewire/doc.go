// Package nvmewire is the codec of NVMe over Fabrics on RDMA: capsules with their
// submission and completion queue entries, SGL descriptors, the private data of a
// connection, and the structures that Connect, Identify, Get Log Page and Dataset
// Management move. All integers are little-endian, unlike those of the layers below.
//
// Sources are what is public of the formats: Linux (include/linux/nvme.h, nvme-rdma.h,
// drivers/nvme) and what its host sends; docs/requirements/nvme-requirements.md has the rows.
package nvmewire
