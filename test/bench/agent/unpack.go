package main

import (
	"bytes"
	"compress/gzip"
	"io"
)

func unpack(body []byte) (string, error) {
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), err
}
