rule figure:
    input:
        f"{REPORT}/results.json",
        f"{REPORT}/trials.parquet",
    output:
        f"{RESULTS}/figures/{{figure}}.json",
    log:
        f"logs/{RUN}/figure/{{figure}}.log",
    params:
        code=FLOW.figure_code,
        report=REPORT,
    resources:
        mem_mb=1000,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} figure --name {wildcards.figure} --report {params.report} --code {params.code} --output {output} > {log} 2>&1"
