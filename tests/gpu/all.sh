#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Every run on GPUs, as far as the time goes: tests/gpu/all.sh --help
exec python3 -u "$(dirname "$0")/all.py" "$@"
