package cri

import (
	"encoding/binary"
	"errors"
)

var errWire = errors.New("the answer is no protocol buffer")

// Types of the wire format (protobuf.dev/programming-guides/encoding).
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// Fields of api.proto.
const (
	responseItems = 1 // ListPodSandboxResponse.items
	sandboxID     = 1 // PodSandbox.id
	sandboxState  = 3 // PodSandbox.state; SANDBOX_READY is 0, and so not sent
)

// sandboxes decodes a ListPodSandboxResponse.
func sandboxes(b []byte) ([]Sandbox, error) {
	var list []Sandbox
	err := eachField(b, func(field, wire int, _ uint64, value []byte) error {
		if field != responseItems || wire != wireBytes {
			return nil
		}
		s := Sandbox{Ready: true}
		err := eachField(value, func(field, wire int, number uint64, value []byte) error {
			switch {
			case field == sandboxID && wire == wireBytes:
				s.ID = string(value)
			case field == sandboxState && wire == wireVarint:
				s.Ready = number == 0
			}
			return nil
		})
		if err == nil && s.ID == "" {
			err = errors.New("a sandbox has no id")
		}
		list = append(list, s)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// eachField calls fn with each field of a message: the number of a varint, or the bytes of a text, message or list.
func eachField(b []byte, fn func(field, wire int, number uint64, value []byte) error) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 {
			return errWire
		}
		b = b[n:]
		wire := int(tag & 7)
		var number uint64
		size := 0
		switch wire {
		case wireVarint, wireBytes:
			if number, n = binary.Uvarint(b); n <= 0 {
				return errWire
			}
			b = b[n:]
			if wire == wireBytes {
				if number > uint64(len(b)) {
					return errWire
				}
				size = int(number)
			}
		case wireFixed64:
			size = 8
		case wireFixed32:
			size = 4
		default:
			return errWire
		}
		if size > len(b) {
			return errWire
		}
		if err := fn(int(tag>>3), wire, number, b[:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}
