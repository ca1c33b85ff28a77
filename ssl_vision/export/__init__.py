"""Export of backbones to other libraries, and features of image folders."""
