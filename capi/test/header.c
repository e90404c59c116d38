/*
 * This file contains only the header. It is compiled in each language that the header supports,
 * with both dialects.
 */
#define VIPL095
#include <vipl.h>

int both_dialects(VIP_DESCRIPTOR *d);

int both_dialects(VIP_DESCRIPTOR *d) {
	VIP_CONTROL_SEGMENT *cs = &d->CS;

	cs->Status = 0;
	d->Control.SegCount = 1;
	d->DS[0].Remote.Handle = 0;
	d->DS[1].Local.Length = 5;
	d->Data[1].Data.Address = 0;
	d->CS.Next.Descriptor = d;
	return d->Data[1].Length == 5 && d->Control.Next.AddressBits != 0 && VIP_INFINITE == (VIP_ULONG)-1 && VIP_ERROR == VIP_DESCRIPTOR_ERROR;
}
